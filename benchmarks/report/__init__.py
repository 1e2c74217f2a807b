"""Tables, verdicts and pictures of what was measured."""
