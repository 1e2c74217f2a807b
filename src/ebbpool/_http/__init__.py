"""The HTTP server whose waiting connections hold no worker."""
