"""What programs import: release memory, see who holds it, limit what a piece of work may hold."""
