"""What every room uses and none owns: errors and warnings, files, checks of inputs, randomness, progress, words.

Nothing here imports another part of Equipoise, and what `plots` and `report` use (`errors`, `files`, `words`,
`progress`) does not import torch.
"""
