"""The words of users, each written once in terms of verbs."""
