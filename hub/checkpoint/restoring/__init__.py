"""How a restore is planned, carried out, and taken back."""
