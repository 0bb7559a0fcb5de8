"""A page, or a text, of all that the folders of results hold: op-tools report"""
