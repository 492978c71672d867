"""Classification, the paper's second experiment: ResNets whose later convolutions look over metric balls, fairly.

Every method starts as the ordinary network, trains on the same schedule and is judged at its own best rate of the
geometry; the paper's own start and schedule are there too. Commands, each with a CSV and the paper's numbers
beside ours:

- ``classify``: one run, or a grid of them;
- ``classify-sweep``: accuracy by the multiplier of the heads' learning rate, and its figure;
- ``classify-diagnose``: what the learnt metrics are like, layer by layer;
- ``classify-gradcam``: what each method's network looks at.
"""
