"""lowering: from a laid-out graph to the actors of every rank, and the bytes that they hold and send."""
