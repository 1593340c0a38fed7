"""What every room uses: errors, expressions, files, the cache on disk, shares of the processors."""
