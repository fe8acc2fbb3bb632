-- Retry a dead letter: add the original entry to its stream again, with the fields that it had, and
-- remove the letter.
--
-- KEYS    1 dead stream   2 the stream that the entry was in
-- ARGV    1 letter's id
-- Returns {"retried", id of the new entry}
--         {"gone", ""}       there is no such letter: it was retried, dropped or trimmed; nothing changed
--         {"elsewhere", ""}  the letter names another stream; nothing changed
--         {"truncated", ""}  the letter has only some of the entry's fields; nothing changed
--         {"empty", ""}      the letter has none of them: the entry was trimmed before it was given up,
--                            or this is no letter of ours; nothing changed
-- Refuses with WRONGTYPE when a key is no stream, and with OOM; nothing changed.
local letter = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not letter then return {'gone', ''} end

local stream, truncated, original = nil, false, {}
for i = 1, #letter[2], 2 do
  local name, value = letter[2][i], letter[2][i + 1]
  if name == 'stream' then
    stream = value
  elseif name == 'truncated' then
    truncated = true
  elseif string.sub(name, 1, 9) == 'original:' then
    original[#original + 1] = string.sub(name, 10)
    original[#original + 1] = value
  end
end
if stream ~= KEYS[2] then return {'elsewhere', ''} end
if truncated then return {'truncated', ''} end
if #original == 0 then return {'empty', ''} end

local id = redis.call('XADD', stream, '*', unpack(original))
redis.call('XDEL', KEYS[1], ARGV[1])
return {'retried', id}
