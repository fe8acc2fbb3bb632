package stream

import "strings"

// NotesLua is the source of the Lua functions that change [Notes], for scripts of other packages. Its comments describe them.
var NotesLua = source("notes")

// Notes changes the notes that Redis keeps of a subject, for people to read, in the script that ends a delivery. There are at
// most 16 of a subject; a new one replaces the oldest. On Cluster, all keys share the stream's hash tag.
type Notes struct {
	Hash, Field string // where the notes are kept
	Index       string // ZSET of the subjects with notes, by the time of the newest, in ms
	Member      string // the subject's member of Index

	// A note to add, one line without tabs. It replaces that with the same name, and also has its time and that of the next
	// attempt, to which the same script delays the message. No note is added without a name.
	Name, Text string

	Remove []string // names; one that begins or ends with * stands for any text there
}

var oneLine = strings.NewReplacer("\n", " ", "\t", " ")

// Append appends the keys and arguments that notes_of of [NotesLua] reads: 1 and these, or 0 for nil.
func (n *Notes) Append(keys []string, args []any) ([]string, []any) {
	if n == nil {
		return keys, append(args, 0)
	}
	keys = append(keys, n.Hash, n.Index)
	args = append(args, 1, n.Field, n.Member, oneLine.Replace(n.Name), oneLine.Replace(n.Text), len(n.Remove))
	for _, pattern := range n.Remove {
		args = append(args, pattern)
	}
	return keys, args
}
