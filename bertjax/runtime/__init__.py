"""Platform, processes of one run, heartbeats and signals."""
