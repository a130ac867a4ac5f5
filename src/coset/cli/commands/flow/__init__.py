"""Generate networks: collect many, fit a flow to them, sample new ones, and evaluate those.

Example: coset flow sample flow.safetensors -n 100 -o samples.safetensors
"""
