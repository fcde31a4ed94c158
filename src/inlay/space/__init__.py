"""What can be chosen: units, domains, regions, patterns and their insertion points."""
