"""What writes pages of docs/ from records, and what measures the house."""
