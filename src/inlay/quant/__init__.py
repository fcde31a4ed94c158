"""From samples to numbers: observe, choose qparams, write Q/DQ nodes, read them back, judge the accuracy."""
