"""What a reader gets: cards, index, figures, published folders, and their verification."""
