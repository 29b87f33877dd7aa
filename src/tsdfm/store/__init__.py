"""What lies on the disk: files complete or not there, manifests, checkpoints, and bundles of packed weights.

files        JSON written in one step, hashes, and clear words for a full disk
schema       what a JSON file must hold
kinds        the files of artifacts, as they are read
manifest     what made an artifact
hashes       whether its files are still what they were
lock         one process at a time in a run's folder
checkpoint   the checkpoints of a run: safetensors and JSON
packed       weights made small for shipping
hub          whether it can be reached
bundle       models made to be passed on, found by folder or by name
"""
