"""The nouns that pass between rooms: frozen structs, no behaviour beyond their own fields."""
