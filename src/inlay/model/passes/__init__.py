"""One pass for each quirk of real models. A pass edits the model in place and says how often it did."""
