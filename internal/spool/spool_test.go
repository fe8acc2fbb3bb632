package spool_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/internal/spool"
	"lockstep/internal/testenv"
)

// appendForever makes the test binary append and print each item until it is killed.
const appendForever = "SPOOL_TEST_APPEND"

func TestMain(m *testing.M) {
	if dir := os.Getenv(appendForever); dir != "" {
		s, err := spool.Open(dir, spool.Config{})
		for n := 0; err == nil; n++ {
			if err = s.Append(context.Background(), fmt.Append(nil, n)); err == nil {
				fmt.Println(n)
			}
		}
		fmt.Println(err)
		os.Exit(1)
	}
	testenv.Main(m)
}

func open(t *testing.T, dir string, cfg spool.Config) *spool.Spool {
	t.Helper()
	s, err := spool.Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func add(t *testing.T, s *spool.Spool, items ...string) {
	t.Helper()
	for _, item := range items {
		if err := s.Append(t.Context(), []byte(item)); err != nil {
			t.Fatal(err)
		}
	}
}

// take drops and returns all items of s, in order.
func take(t *testing.T, s *spool.Spool) (all []string) {
	t.Helper()
	for {
		items, err := s.Peek(3)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) == 0 {
			return all
		}
		for _, item := range items {
			all = append(all, string(item.Data))
		}
		if err := s.Drop(items...); err != nil {
			t.Fatal(err)
		}
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestOrderSurvivesRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made/by/it")
	s := open(t, dir, spool.Config{})
	add(t, s, "a", "b", "c", "d", "e")
	items, err := s.Peek(2)
	if err != nil || len(items) != 2 || string(items[0].Data) != "a" || string(items[1].Data) != "b" {
		t.Fatalf("peek %v, error %v", items, err)
	}
	if err := s.Drop(items[0]); err != nil {
		t.Fatal(err)
	}
	if err := s.Requeue(items[1]); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, spool.Config{})
	select {
	case <-s.Appended():
	default:
		t.Error("Appended does not signal existing items")
	}
	add(t, s, "f")
	if n := s.Len(); n != 5 {
		t.Errorf("%d items, want 5", n)
	}
	if got, want := take(t, s), []string{"c", "d", "e", "b", "f"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if n, bytes := s.Stats(); n != 0 || bytes != 0 {
		t.Errorf("counts %d items and %d bytes although it is empty", n, bytes)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("closing an empty spool leaves %q", left)
	}
	if err := s.Append(t.Context(), []byte("g")); !errors.Is(err, spool.ErrClosed) {
		t.Errorf("error %v after Close", err)
	}
}

func TestConcurrentAppendsKeepTheirOrder(t *testing.T) {
	s := open(t, t.TempDir(), spool.Config{})
	const appenders, each = 16, 50
	var g errgroup.Group
	for who := range appenders {
		g.Go(func() error {
			for n := range each {
				if err := s.Append(t.Context(), fmt.Appendf(nil, "%02d %02d", who, n)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	got := take(t, s)
	if len(got) != appenders*each {
		t.Fatalf("%d items, want %d", len(got), appenders*each)
	}
	next := map[string]int{}
	for _, item := range got {
		who, n, _ := strings.Cut(item, " ")
		if n != fmt.Sprintf("%02d", next[who]) {
			t.Fatalf("%s, want item %02d of its appender", item, next[who])
		}
		next[who]++
	}
}

func TestFullSpoolAcceptsItemsAfterADrop(t *testing.T) {
	for name, cfg := range map[string]spool.Config{
		"by bytes": {MaxBytes: 2 * (64 + 10)},
		"by items": {MaxItems: 2},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, cfg)
			add(t, s, "0123456789", "0123456789")
			if err := s.Append(t.Context(), []byte("x")); !errors.Is(err, spool.ErrFull) {
				t.Fatalf("error %v, want ErrFull", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir, cfg)
			if err := s.Append(t.Context(), []byte("x")); !errors.Is(err, spool.ErrFull) {
				t.Fatalf("after a restart: error %v, want ErrFull", err)
			}
			if got := take(t, s); len(got) != 2 {
				t.Fatalf("%d items, want 2", len(got))
			}
			add(t, s, "x")
		})
	}
}

func TestFullDiskFailsAppendsOnly(t *testing.T) {
	s := open(t, t.TempDir(), spool.Config{})
	add(t, s, "before")
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 256 << 10, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	kept := 0
	var err error
	for kept < 1000 {
		if err = s.Append(t.Context(), make([]byte, 8<<10)); err != nil {
			break
		}
		kept++
	}
	if restored := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); restored != nil {
		t.Fatal(restored)
	}
	if err == nil || !strings.Contains(err.Error(), syscall.EFBIG.Error()) { // bbolt does not wrap it
		t.Fatalf("error %v after %d appends, want the disk's", err, kept)
	}
	add(t, s, "after")
	got := take(t, s)
	if len(got) != kept+2 || got[0] != "before" || got[len(got)-1] != "after" {
		t.Errorf("%d items, want the %d that were kept", len(got), kept+2)
	}
}

// killAppender runs a process that appends to dir and kills it after it has printed n items. It returns the number of
// items printed.
func killAppender(t *testing.T, dir string, n int) (printed int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), appendForever+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); printed++ {
		if printed+1 == n {
			_ = cmd.Process.Kill()
		}
	}
	_ = cmd.Wait()
	return printed
}

func TestAppendedItemsSurviveAKill(t *testing.T) {
	dir := t.TempDir()
	printed := killAppender(t, dir, 50)
	got := take(t, open(t, dir, spool.Config{}))
	if len(got) < printed {
		t.Fatalf("%d items, want the %d that were appended", len(got), printed)
	}
	for n, item := range got {
		if item != fmt.Sprint(n) {
			t.Fatalf("item %d is %q", n, item)
		}
	}
}

func TestAdoptTakesFilesOfDeadProcessesOnly(t *testing.T) {
	dir := t.TempDir()
	first, second := open(t, dir, spool.Config{}), open(t, dir, spool.Config{})
	add(t, first, "first's")
	add(t, second, "second's")
	if got := take(t, second); !slices.Equal(got, []string{"second's"}) {
		t.Fatalf("the second process has %q", got)
	}
	if n, err := second.Adopt(); n != 0 || err != nil {
		t.Fatalf("adopted %d items of a running process, error %v", n, err)
	}
	printed := killAppender(t, dir, 10)
	add(t, second, "later")
	<-second.Appended()
	n, err := second.Adopt()
	if err != nil || n < printed {
		t.Fatalf("adopted %d of %d items of the dead process, error %v", n, printed, err)
	}
	select {
	case <-second.Appended():
	default:
		t.Error("Appended does not signal adopted items")
	}
	if n, _ := first.Adopt(); n != 0 {
		t.Errorf("a file was adopted twice: %d items", n)
	}
	if items, _ := second.Stats(); items != n+1 || second.Len() != 1 {
		t.Errorf("counts %d items, want %d; %d own ones, want 1", items, n+1, second.Len())
	}
	got := take(t, second)
	if len(got) != n+1 || got[0] != "0" || got[len(got)-1] != "later" {
		t.Errorf("items %q", got)
	}
	if left := files(t, dir); len(left) != 2 {
		t.Errorf("files %q, want the adopted one deleted", left)
	}
	if got := take(t, first); !slices.Equal(got, []string{"first's"}) {
		t.Errorf("the first process has %q", got)
	}
}

func TestDamagedFileIsReplaced(t *testing.T) {
	for name, damage := range map[string]func(content []byte) []byte{
		"nonsense":  func([]byte) []byte { return []byte(strings.Repeat("nonsense ", 10_000)) },
		"cut short": func(content []byte) []byte { return content[:9000] },
		"a few bytes": func([]byte) []byte {
			return []byte("abc")
		},
		"a damaged page": func(content []byte) []byte {
			for i := 2 * os.Getpagesize(); i < len(content); i++ {
				content[i] = 0xff
			}
			return content
		},
	} {
		for _, when := range []string{"while unused", "while in use", "on adoption"} {
			t.Run(name+" "+when, func(t *testing.T) {
				dir := t.TempDir()
				spoil := func(path string) {
					content, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, damage(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				s := open(t, dir, spool.Config{})
				for n := range 200 {
					add(t, s, fmt.Sprintf("%d %s", n, strings.Repeat("x", 500)))
				}
				switch when {
				case "while unused":
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					spoil(filepath.Join(dir, "0.bolt"))
					s = open(t, dir, spool.Config{})
				case "while in use":
					spoil(filepath.Join(dir, "0.bolt"))
					for range 200 { // until the damage is detected
						items, err := s.Peek(100)
						if err != nil {
							t.Fatal(err)
						}
						if len(items) == 0 {
							break
						}
						if err := s.Drop(items...); err != nil {
							t.Fatal(err)
						}
					}
				case "on adoption":
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					if err := os.Rename(filepath.Join(dir, "0.bolt"), filepath.Join(dir, "7.bolt")); err != nil {
						t.Fatal(err)
					}
					spoil(filepath.Join(dir, "7.bolt"))
					s = open(t, dir, spool.Config{})
					if n, err := s.Adopt(); n != 0 || err != nil {
						t.Fatalf("adopted %d, error %v", n, err)
					}
				}
				add(t, s, "new")
				if got := take(t, s); !slices.Equal(got, []string{"new"}) {
					t.Errorf("items %.60q", got)
				}
				aside := slices.DeleteFunc(files(t, dir), func(name string) bool { return !strings.Contains(name, ".damaged-") })
				if len(aside) != 1 {
					t.Errorf("moved aside: %q", aside)
				}
			})
		}
	}
}

func TestAppendReturnsWhenItsContextIsDone(t *testing.T) {
	s := open(t, t.TempDir(), spool.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// The item may or may not be kept, but Append must return and the counters must match.
	_ = s.Append(ctx, []byte("x"))
	add(t, s, "y")
	got := take(t, s)
	if got[len(got)-1] != "y" || s.Len() != 0 {
		t.Errorf("items %q, %d left", got, s.Len())
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, appenders := range []int{1, 32} {
		b.Run(fmt.Sprintf("%d at once", appenders), func(b *testing.B) {
			s, err := spool.Open(b.TempDir(), spool.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			item := make([]byte, 500)
			work := make(chan struct{})
			var wg sync.WaitGroup
			for range appenders {
				wg.Go(func() {
					for range work {
						if err := s.Append(b.Context(), item); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
		})
	}
}

func TestRequeuedAdoptedItemsFollowOwnItems(t *testing.T) {
	dir := t.TempDir()
	s, dead := open(t, dir, spool.Config{}), open(t, dir, spool.Config{})
	add(t, dead, "a", "b")
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	add(t, s, "own")
	if n, err := s.Adopt(); n != 2 || err != nil {
		t.Fatalf("adopted %d, error %v", n, err)
	}
	items, err := s.Peek(10)
	if err != nil || len(items) != 2 {
		t.Fatalf("peek %v, error %v", items, err)
	}
	if err := s.Requeue(items[0]); err != nil {
		t.Fatal(err)
	}
	if n, bytes := s.Stats(); n != 3 || s.Len() != 2 || bytes != 2*64+4 {
		t.Errorf("counts %d items, %d own ones with %d bytes", n, s.Len(), bytes)
	}
	if got, want := take(t, s), []string{"b", "own", "a"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if left := files(t, dir); len(left) != 1 {
		t.Errorf("files %q, want the adopted one deleted", left)
	}
}
