package volume

// holder is the holder of the lease on a repository, with what it knows of the repository's folder. Its
// methods clean up: they retire and delete what nobody needs any more.
type holder struct {
	v       *Volume
	f       folder
	fence   uint64
	binding binding
	horizon horizon // see queryHorizon
	tidied  bool    // tidy has looked at all trees
	endPins bool    // see GCRequest
}
