"""Time and memory on this machine: `leaner bench`, of this family beside its peers, and `leaner plan --measure`."""
