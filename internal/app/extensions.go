package app

import (
	"lockstep/internal/credential"
	"lockstep/internal/ext"
	_ "lockstep/internal/ext/lfs" // registers its options of watches
	"lockstep/internal/ext/signatures"
	_ "lockstep/internal/ext/submodules" // registers its options of watches
	_ "lockstep/internal/ext/views"      // registers its options of watches
)

// extensions returns the optional parts of a sync.
func extensions(credentials *credential.Store) []ext.Extension {
	return []ext.Extension{signatures.New(credentials)}
}
