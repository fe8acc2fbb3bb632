package stream

import "strings"

// NotesLua is the source of the Lua functions that change [Notes], for scripts of other packages. Its comments describe them.
var NotesLua = source("notes")

// Notes changes the notes that Redis keeps of a subject, for people to read, in the script that ends a delivery. There are at
// most 16 of a subject; a new one replaces the oldest. [ParseNotes] reads them. On Cluster, all keys share the stream's hash tag.
type Notes struct {
	Hash, Field string // where the notes are kept
	Index       string // ZSET of the subjects with notes, by the time of the newest, in ms
	Member      string // the subject's member of Index

	Add    Note     // replaces that with the same name; no note without a name
	Remove []string // names; one that begins or ends with * stands for any text there
}

// Note is a named line of text, without tabs. The time of the next attempt is that to which the same script delays the message.
type Note struct{ Name, Text string }

// ParsedNote is a note as kept.
type ParsedNote struct {
	Note
	AtMS   string // when it was added, in ms of Redis' clock
	NextMS string // time of the next attempt, or "0"
}

// ParseNotes parses the value of a field with notes, the newest first. It skips what it cannot parse.
func ParseNotes(value string) (notes []ParsedNote) {
	lines := strings.Split(value, "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if parts := strings.SplitN(lines[i], "\t", 4); len(parts) == 4 {
			notes = append(notes, ParsedNote{Note{parts[0], parts[3]}, parts[1], parts[2]})
		}
	}
	return notes
}

var oneLine = strings.NewReplacer("\n", " ", "\t", " ")

// Append appends the keys and arguments that notes_of of [NotesLua] reads: 1 and these, or 0 for nil.
func (n *Notes) Append(keys []string, args []any) ([]string, []any) {
	if n == nil {
		return keys, append(args, 0)
	}
	keys = append(keys, n.Hash, n.Index)
	args = append(args, 1, n.Field, n.Member, oneLine.Replace(n.Add.Name), oneLine.Replace(n.Add.Text), len(n.Remove))
	for _, pattern := range n.Remove {
		args = append(args, pattern)
	}
	return keys, args
}
