"""Does remote storage hold the tiered prefix of every migrated partition?"""
