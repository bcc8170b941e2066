"""Models written out from the mechanisms of this package, one readable file each."""
