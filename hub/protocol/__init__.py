"""The contract on the wire: JSON-RPC 2.0 over one WebSocket, as tables of methods and events. No I/O in here."""
