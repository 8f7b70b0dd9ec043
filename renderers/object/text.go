package object

import (
	"slices"
	"strings"
	"unicode"
)

// Nearest returns which of the names is written nearly like one; empty if none is, or if it is that one.
func Nearest(name string, known []string) string {
	nearest, least := "", min(3, len(name)/3)+1
	for _, k := range slices.Sorted(slices.Values(known)) {
		if d := Distance(name, k); d < least {
			nearest, least = k, d
		}
	}
	if nearest == name {
		return ""
	}
	return nearest
}

// Distance is the number of characters to insert, delete or replace to make a into b.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// OneLine makes one line of text that may hold what a user wrote, or a member answers: without what a terminal would act on.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.Join(strings.Fields(s), " "))
}
