"""The place of models/ and data/ in a wheel; in the repository they are beside the package."""
