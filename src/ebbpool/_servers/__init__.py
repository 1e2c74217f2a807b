"""What socketserver's servers are made of."""
