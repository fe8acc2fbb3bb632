package gitserver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
)

// Shape is the size of a repository for [Server.Generate].
type Shape struct {
	Files int
	Bytes int64 // total size of the files
}

// Generate creates a bare repository with one commit on [Main], which it returns. The files resemble source code: sizes
// are distributed log-normally, the text deflates to about a third, and directories nest. The same shape results in the
// same commit. Files are streamed, not held in memory.
func (s *Server) Generate(ctx context.Context, repo string, shape Shape) (string, error) {
	if shape.Files < 1 || shape.Bytes < int64(shape.Files) {
		return "", fmt.Errorf("generate %s: want at least one file, and one byte for each file", repo)
	}
	if err := s.CreateEmpty(ctx, repo); err != nil {
		return "", err
	}
	script, writer := io.Pipe()
	var writing sync.WaitGroup
	writing.Go(func() { writer.CloseWithError(shape.writeTo(writer)) })
	defer writing.Wait()
	defer script.Close() // git may exit before reading all input
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "git", "fast-import", "--quiet", "--done", "--date-format=raw")
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stderr = s.Dir(repo), isolatedEnv(), script, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("generate %s: %w: %s", repo, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// writeTo writes the commit as a fast-import script.
func (shape Shape) writeTo(w io.Writer) error {
	random := rand.New(rand.NewPCG(0, uint64(shape.Files)))
	paths, sizes, prose := shape.paths(random), shape.sizes(random), newProse(random)
	script := bufio.NewWriterSize(w, 1<<20)
	fmt.Fprintf(script, "commit refs/heads/%s\nmark :1\ncommitter %s <%s> %d +0000\ndata 0\n", Main, author, email, epoch)
	for i, path := range paths {
		mode := "100644"
		if strings.HasSuffix(path, ".sh") {
			mode = "100755"
		}
		fmt.Fprintf(script, "M %s inline %s\ndata %d\n", mode, path, sizes[i])
		if _, err := script.Write(prose.text(sizes[i])); err != nil {
			return err
		}
		fmt.Fprintln(script)
	}
	fmt.Fprint(script, "\nget-mark :1\ndone\n")
	return script.Flush()
}

const (
	filesPerFolder = 12 // like Redis and Git
	deepestFolder  = 7
	sizeSpread     = 1.3 // standard deviation of the logarithm of the sizes
)

// paths generates the paths: half of the files are in the newest directory, half in any.
func (shape Shape) paths(random *rand.Rand) []string {
	extensions := []string{".c", ".c", ".c", ".h", ".h", ".go", ".py", ".md", ".txt", ".sh"}
	folders := []string{"", "src/"}
	paths := make([]string, shape.Files)
	for i := range paths {
		if i%filesPerFolder == filesPerFolder-1 {
			if parent := folders[random.IntN(len(folders))]; strings.Count(parent, "/") < deepestFolder {
				folders = append(folders, fmt.Sprintf("%s%s-%d/", parent, syllables(random, 2), len(folders)))
			}
		}
		folder := folders[len(folders)-1]
		if random.IntN(2) == 0 {
			folder = folders[random.IntN(len(folders))]
		}
		paths[i] = fmt.Sprintf("%s%s-%d%s", folder, syllables(random, 3), i, extensions[random.IntN(len(extensions))])
	}
	return paths
}

// sizes distributes the bytes, at least one for each file.
func (shape Shape) sizes(random *rand.Rand) []int {
	weights, total := make([]float64, shape.Files), 0.0
	for i := range weights {
		weights[i] = math.Exp(sizeSpread * random.NormFloat64())
		total += weights[i]
	}
	sizes, left := make([]int, shape.Files), shape.Bytes-int64(shape.Files)
	for i, weight := range weights {
		sizes[i] = 1 + int(weight/total*float64(left))
	}
	return sizes
}

// prose generates text.
type prose struct {
	random *rand.Rand
	words  []string
	buffer bytes.Buffer
}

const (
	vocabulary    = 1024 // words; lower ones are more frequent
	repeats       = 3    // average number of lines between repetitions of earlier text
	longestRepeat = 120  // bytes
)

func newProse(random *rand.Rand) *prose {
	p := &prose{random: random, words: make([]string, vocabulary)}
	for i := range p.words {
		p.words[i] = syllables(random, 1+random.IntN(3))
	}
	return p
}

func syllables(random *rand.Rand, n int) string {
	const consonants, vowels = "bcdfghklmnprstvw", "aeiou"
	word := make([]byte, 0, 2*n+1)
	for range n {
		word = append(word, consonants[random.IntN(len(consonants))], vowels[random.IntN(len(vowels))])
	}
	return string(append(word, consonants[random.IntN(len(consonants))]))
}

// text returns size bytes of lines, valid until the next call. Like source code, they repeat earlier text.
func (p *prose) text(size int) []byte {
	p.buffer.Reset()
	for p.buffer.Len() < size {
		if said := p.buffer.Len() - longestRepeat; said > 0 && p.random.IntN(repeats) == 0 {
			from := p.random.IntN(said)
			p.buffer.Write(p.buffer.Bytes()[from : from+longestRepeat/4+p.random.IntN(longestRepeat*3/4)])
		}
		for range p.random.IntN(4) {
			p.buffer.WriteByte('\t')
		}
		for n := 3 + p.random.IntN(7); n > 0; n-- {
			p.buffer.WriteString(p.words[p.random.IntN(1+p.random.IntN(1+p.random.IntN(len(p.words))))])
			p.buffer.WriteString([]string{" ", " ", " ", "_", "(", ", ", ") ", " = "}[p.random.IntN(8)])
		}
		p.buffer.WriteString(";\n")
	}
	p.buffer.Truncate(size)
	return p.buffer.Bytes()
}
