"""What the plugin for pytest needs of the package."""
