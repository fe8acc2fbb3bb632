package events

import (
	"encoding/json"
	"regexp"
	"slices"
)

var (
	changeTypes = []ChangeType{ChangePushed, ChangeRemoved, ChangeMoved, ChangeDue}
	resultTypes = []ResultType{ResultSynced, ResultFailed, ResultRemoved, ResultMoved, ResultPolled}

	changeType = regexp.MustCompile(`^lockstep\.change\.[a-z_]{1,40}\.v[1-9][0-9]{0,3}$`)
	resultType = regexp.MustCompile(`^lockstep\.result\.[a-z_]{1,40}\.v[1-9][0-9]{0,3}$`)
)

// newer is the error about a document whose type looks like one of ours and is none that this version knows; nil
// about any other. Whatever else is wrong with the document, by what this version knows of documents, the type
// has said why.
func newer[T ~string](document []byte, ours *regexp.Regexp, known []T) error {
	var probe struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(document, &probe) != nil || !ours.MatchString(probe.Type) || slices.Contains(known, T(probe.Type)) {
		return nil
	}
	return Errorf(Contention, ClassNewer, "type %s came after this version; it is for a newer one", probe.Type)
}
