"""Planning: what a user asks for as a request, the prices it is answered by, and the answer in words and as JSON."""
