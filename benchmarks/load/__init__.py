"""What loads servers and pools, and counts every answer."""
