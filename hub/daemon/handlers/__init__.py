"""The handlers of the methods, one file per noun. Each says what a call does; none decides how it is stored or sent."""
