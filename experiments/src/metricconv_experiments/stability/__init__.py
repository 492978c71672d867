"""Why geodesic networks collapsed, and accuracy by multiplier and by the distance that samples move in a step."""
