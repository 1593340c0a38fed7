"""Why is a rung as fast as it is? Counters, resources, roofline, time inside a kernel."""
