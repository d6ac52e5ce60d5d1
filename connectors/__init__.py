"""Connectors: processes that join one account of a chat platform to the hub, each a client of its protocol.

Invariant: a platform's offset advances only after the hub has stored the message, and a result is sent only under a
claim. A connector knows no other connector, decides nothing about rights, and keeps no conversation of its own.
No connector ships yet; the interface and the platforms come with later releases.
"""
