"""Models of a hub: named, listed, looked at before they are downloaded, and kept."""
