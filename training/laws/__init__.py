"""Laws of shape, fitted to the finished runs of grids with branches."""
