"""What lies in deploy/, and the events that the service writes into a cluster."""
