"""What lies on the disk: files complete or not there, manifests, checkpoints, and bundles of packed weights.

files        JSON written in one step, hashes, and clear words for a full disk
manifest     what made an artifact
checkpoint   the checkpoints of a run: safetensors and JSON
packed       weights made small for shipping
hub          whether it can be reached
bundle       models made to be passed on, found by folder or by name
"""
