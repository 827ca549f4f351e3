"""Several processes that train one model: who they are, what the first tells the others, what if one dies."""
