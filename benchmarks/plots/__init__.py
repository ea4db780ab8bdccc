"""Pictures, drawn in an environment with matplotlib; each script is given an .npz file and where to draw."""
