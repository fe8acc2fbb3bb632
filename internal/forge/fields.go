package forge

import (
	"bytes"
	"encoding/json"
)

// decodeFields decodes a few fields of a JSON object, given as pointers by path, such as
// "repository.full_name". It only validates the rest, which takes half the time of decoding a push into a
// struct. Names are compared byte by byte: a name with an escape sequence is not found.
func (r *reader) decodeFields(body []byte, fields map[string]any) error {
	body = bytes.TrimLeft(body, " \t\r\n")
	if !json.Valid(body) || body[0] != '{' {
		return r.decode(body, &struct{}{}) // returns a better error
	}
	parents := map[string]bool{}
	for path := range fields {
		for i := range len(path) {
			if path[i] == '.' {
				parents[path[:i]] = true
			}
		}
	}
	return r.decodeObject(body, "", fields, parents)
}

func (r *reader) decodeObject(object []byte, under string, fields map[string]any, parents map[string]bool) error {
	for i := afterSpace(object, 1); object[i] != '}'; {
		end := afterValue(object, i)
		path := under + string(object[i+1:end-1])
		i = afterSpace(object, afterSpace(object, end)+1) // skips the colon
		end = afterValue(object, i)
		value := object[i:end]
		if into, ok := fields[path]; ok {
			if err := r.decode(value, into); err != nil {
				return err
			}
		} else if value[0] == '{' && parents[path] {
			if err := r.decodeObject(value, path+".", fields, parents); err != nil {
				return err
			}
		}
		if i = afterSpace(object, end); object[i] == ',' {
			i = afterSpace(object, i+1)
		}
	}
	return nil
}

// afterSpace returns the index of the first byte at or after i that is not white space.
func afterSpace(text []byte, i int) int {
	for text[i] == ' ' || text[i] == '\n' || text[i] == '\r' || text[i] == '\t' {
		i++
	}
	return i
}

// afterValue returns the index after the JSON value that begins at i.
func afterValue(text []byte, i int) int {
	depth := 0
	for {
		switch text[i] {
		case '"':
			i = afterString(text, i)
			if depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		default:
			if depth == 0 { // a number, true, false or null
				return i + len(bytes.TrimRight(text[i:i+scalar(text[i:])], " \t\r\n"))
			}
		}
		i++
	}
}

// scalar returns the length up to the end of a number, true, false or null.
func scalar(text []byte) int {
	if n := bytes.IndexAny(text, ",}]"); n >= 0 {
		return n
	}
	return len(text)
}

func afterString(text []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(text[i:], '"')
		escapes := 0
		for text[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}
