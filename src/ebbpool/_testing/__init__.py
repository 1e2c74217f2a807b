"""What tests need of the package: the plugin for pytest, and the tests of ebbpool itself."""
