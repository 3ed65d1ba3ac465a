"""template: a deep model by one of its layers: the problem of a few layers, and what it says of all of them."""
