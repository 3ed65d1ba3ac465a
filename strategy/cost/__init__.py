"""cost: seconds of an act, from data sheets or from measurements."""
