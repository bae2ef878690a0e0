"""What programs import: let go, see who keeps, bound what a piece of work may hold."""
